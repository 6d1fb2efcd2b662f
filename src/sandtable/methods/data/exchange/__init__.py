"""WITH WHOM: how the vectors of the ranks become one, or more alike."""
