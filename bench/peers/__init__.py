"""What runs inside the environments of peers: only the peer, the standard library, `bodies` and `producer`."""
