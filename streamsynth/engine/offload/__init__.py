"""Models larger than the device: blocks kept on the host come in turn to a few slots on the device while others run."""
