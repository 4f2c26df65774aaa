"""Tables that the roots of a search have in common."""

from dataclasses import dataclass, field

from hetplan.search.space import Option
from hetplan.search.tables import Floats, Layout, StageParts, StageTable


@dataclass(slots=True)
class Shared:
    """What the roots of all searches of one setting have in common."""

    options: dict[object, list[Option]] = field(default_factory=dict)
    rates: dict[object, Floats] = field(default_factory=dict)
    layouts: dict[object, Layout] = field(default_factory=dict)
    parts: dict[object, StageParts] = field(default_factory=dict)
    tables: dict[object, StageTable] = field(default_factory=dict)
