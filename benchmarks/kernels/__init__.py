"""Kernels against the best that torch has, shape by shape: a module an operator."""
