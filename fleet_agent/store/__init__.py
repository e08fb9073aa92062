"""Our database: PostgreSQL, one function per question or change, every one inside a transaction of its caller.

Read `tables` (what is kept, and who writes it), `database` (connections, transactions, the lock of a fleet), then
`runs` (the life of a run) and `ledger` (what it did). `journal` only composes them into the port of that name;
`reading` is what lists and pages show.
"""
