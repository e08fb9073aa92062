"""The simulated world: one market, one proof queue and one model behind the HTTP faces of the real ones.

The world itself is plain Python: seeded, without threads and without HTTP, its state a function of one clock. Only the
faces speak a protocol. Nothing here imports the rest of the product, so that what the simulator counts (boxes, seconds,
dollars) is independent of what the product believes, and may be held against it.
"""
