"""What several tests share: tiny models and indexes, servers, clusters, hand-made runs."""
