"""Memory layer: may the operator touch what its metadata points at?"""
