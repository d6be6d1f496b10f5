"""A shop that leaves its slow work to the background."""
