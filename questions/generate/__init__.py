"""Questions and reference answers made from a corpus, after DataMorgana (seed paper 002, section 2)."""
