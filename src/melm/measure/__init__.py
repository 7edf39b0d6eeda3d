"""How good it is: exact measures against boxes that learning never saw."""
