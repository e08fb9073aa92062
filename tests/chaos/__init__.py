"""Chaos: at every await of a story something happens, the provider misbehaves, and something comes next.

A *case* is (an await point of a story) × (what happens there) × (a fault of the provider) × (what comes next). Nothing
of it is drawn by lot: a story is told once with a fuse that only counts its calls, then once for each call, before and
after. So a case has a name, and can be told again by it.

    cases.py     what a case is, and all of them
    scene.py     one installation at the beginning of a story, and how time passes over it
    stories.py   the stories: what is told until it is interrupted, told again, and told by another
    telling.py   one case from its beginning to what must hold afterwards
    naive.py     the controls: what others do, and what becomes of it
    victim.py    a process that ends itself with SIGKILL; `killed.py` recovers what it leaves
    shares.py    a part of all cases, for one process; `__main__.py` is `make chaos`: all of them, in several
"""
