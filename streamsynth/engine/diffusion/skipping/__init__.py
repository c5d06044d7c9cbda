"""Steps whose blocks are left out because what they would add is near enough to what they added before."""
