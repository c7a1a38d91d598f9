"""What `./dev` does: packages, Python environment, builds, tests. It needs Python's standard library only."""
