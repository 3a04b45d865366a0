"""The passes, one function a file, and what holds after each.

| after | holds |
| --- | --- |
| build | names are unique; every region lies in its buffer; every device exists |
| choose_routes | no transfer travels by ``auto``: each names one route |
| lower_routes | no transfer is left; the steps of each deliver its bytes in its wire dtype |
| split_pieces | the pieces of an op tile it: disjoint, complete, whole rows, for every count |
| infer_dependencies | edges point forward in program order; their closure is that of all hazards |
| plan_memory | buffers share bytes only where all accesses of one are before those of the other |
| assign_streams | one stream an op, on its device; the order of issue agrees with the edges |
| divide | orders lead from unit to unit by signals alone; none is in vain; progress holds |
| find_handshakes | no launch overtakes another in any unit; no handshake is in vain |
| insert_events | every edge is ordered; no wait is in vain; streams fork from and join an origin |

``infer_dependencies`` may put joins into the program and, for an ``after`` that looks ahead, change
its order; ``plan_memory`` with ``tight`` may add edges and joins. ``divide`` takes joins between
units apart and puts the program in the order of issue. Everything else after that only adds.
``verify`` proves the outcome from what is issued, without a look at any of this.
"""
