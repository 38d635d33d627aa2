"""The checker at scale: 56 bytes a request on disk, checked as it arrives and again afterwards."""
