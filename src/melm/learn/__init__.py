"""One visible loop: presets, cached trunk features, checkpoints, many processes."""
