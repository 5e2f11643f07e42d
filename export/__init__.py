"""What a run made, in forms that other programs take: an adapter, merged weights, a data set."""
