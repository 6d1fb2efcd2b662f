"""Files to load in tests, and the pieces they are made of."""

SCALE_UP = """
[scale_up]
kind = "nvswitch"
gb_per_s = 300
latency_us = 1.0
efficiency = 0.8
source = "the box"
status = "nominal"
"""

HOST = """
[host]
pcie_gb_per_s = 31.5
cores = 64
source = "the box"
status = "nominal"
"""

NICS = """
[nics]
count = 4
gbit_per_s = 200
latency_us = 2.0
efficiency = 0.9
transport = "rdma"
source = "the box"
status = "measured"
"""

HEAD = """
title = "a test machine"
gpus_per_node = 8
device = "a100-sxm4-80gb"
source = "the box"
status = "nominal"
"""

FABRIC = """
[fabric]
rails = false
source = "the plan"
status = "nominal"

[[fabric.tiers]]
below = 4
oversubscription = 2.0
latency_us = 0.6
source = "the plan"
status = "nominal"

[[fabric.tiers]]
below = 3
uplink_gbit_per_s = 1000
latency_us = 0.8
source = "the plan"
status = "nominal"

[[fabric.tiers]]
source = "the plan"
status = "nominal"
"""

SITES = """
[fabric]
source = "the plan"
status = "nominal"

[[fabric.tiers]]
below = 2
source = "the plan"
status = "nominal"

[[fabric.tiers]]
source = "the plan"
status = "nominal"

[[fabric.sites]]
name = "east"
num_nodes = 3

[[fabric.sites]]
name = "west"
num_nodes = 2
gbit_per_s = 5

[fabric.between_sites]
gbit_per_s = 10
latency_ms = 15
efficiency = 0.8
source = "the contract"
status = "nominal"
"""

MACHINE = HEAD + SCALE_UP + HOST + NICS
TREE = MACHINE + FABRIC
SITED = MACHINE + SITES
RAILS = TREE.replace("rails = false", "rails = true")

MIXED = """
title = "what was there"
source = "the cupboard"
status = "nominal"

[[groups]]
machine = "dgx-a100"
num_nodes = 2

[[groups]]
machine = "rtx4090+25gbe"
num_nodes = 3

[[groups]]
num_nodes = 1

[groups.machine]
title = "the old one"
device = "titan-x-pascal"
gpus_per_node = 2
source = "the cupboard"
status = "nominal"
"""
