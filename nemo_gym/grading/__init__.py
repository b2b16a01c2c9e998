"""Answers found in what a model said and compared with what was expected: pure, exact, evaluating nothing."""
