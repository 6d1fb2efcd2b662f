"""DistBelief's two methods: asynchronous descent on parameter servers, and L-BFGS whose vectors live there.

Dean et al., "Large Scale Distributed Deep Networks", NIPS 2012.
"""
