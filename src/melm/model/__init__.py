"""What the paper says: backbones, pooling, cliques, entropy, discovery, localization, recurrence, the model."""
