"""A model of hakmem's placement of blocks: which addresses they get, and which pages are resident for it.

It has no memory and no threads: addresses are numbers, calls follow each other. The modules mirror src/slab, src/region
and src/pool, under the names used there, which is where the rules are explained. `policy` says what may differ.
"""
