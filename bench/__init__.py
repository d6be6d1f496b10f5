"""Measures Packhorse beside a peer and beside the bare store: `python -m bench --store sqlite`."""
