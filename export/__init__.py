"""What a run made, in forms that other programs take: weights, GGUF files, a data set, repositories of a hub."""
