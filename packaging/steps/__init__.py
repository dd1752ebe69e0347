"""The steps of packaging/dist.py: each builds one kind of package, installs it in a clean place, and runs a lock through it."""
