"""Cluster: the machines as a value, from TOML, a shipped description or this machine.

A new card is data in `devices.toml`, a new cluster a file in `catalogue/`.

cluster     Cluster, Group, Device, Link
text        from TOML; `load_cluster` takes any of the three ways to name one
idle        what a file says that would do nothing
writing     to TOML
quantity    values with units, read strictly and written so that they read back
parts       the devices of devices.toml
shipped     the clusters of catalogue/, `local:N`, `local:cuda:N`
interfaces  network interfaces of this machine
show        a drawing in text
"""
