"""The process tree of `demo` and `up`: `tree` is its story, the other files are what the story needs.

`processes` one child with its log and its end; `orphans` ends what a killed root leaves; `environments` what each
process may know; `runtime` how other commands find a running tree.
"""
