"""The parts of `benches/run.py`, which measures Headrow beside its peers.

`cells`, `measure`, `plots` and `report` need Python alone; `models`, `export` and `peers` run in the peers' environment.
"""
