from reactor.act.reclaim import NodeReclaim, NoReclaim
from reactor.model.signals import Reclaim


async def test_a_plain_node_has_nothing_to_give_back() -> None:
    plain: NodeReclaim = NoReclaim()
    for kind in Reclaim:
        await plain.run(kind)
