"""Questions and reference answers generated from a corpus, after DataMorgana (Filice et al. 2025, arXiv 2501.12789)."""
