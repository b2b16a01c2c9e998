"""Break running evaluations on purpose and check that nothing is lost, doubled or falsely scored."""
