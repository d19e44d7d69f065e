"""Quality: perplexity and KL divergence through the packed cache, beside the exact one."""
