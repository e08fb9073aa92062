"""Webhooks in: what the proving stack's alerting and other programs report becomes inbox events, what boxes say of
themselves stands in the ledger.

A port and a process of its own, so that whoever can reach it reaches nothing else: it knows the database and no key.
`app` is the door, `formats` what senders mean, `rate` how much one of them may say, `server` the process.
"""
