"""The dossier: what a maintainer wants to know before a program gets another allocator.

rule.py fixes, before anything is run, what would have to be shown, and says in the end whether it was; cases.py runs a
command or a service three times for each round, each time for other figures; page.py puts all of it on one page.
"""
