"""From a request that ended to its case, its diagnosis and the sinks, beside the relay."""
