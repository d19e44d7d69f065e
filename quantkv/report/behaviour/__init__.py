"""What is told of retrieval and generation: tables of scores, and a heat map of depth against length."""
