"""The whole job: facts of many nodes put together and judged by the judges of one.

Nodes have no common clock. Each one's instants are moved onto the clock of this host by how old
they are; two nodes' clocks are never compared.
"""
