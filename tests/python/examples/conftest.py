import sys
from pathlib import Path

import torch

EXAMPLES = Path(__file__).parents[3] / "examples"
sys.path.insert(0, str(EXAMPLES))  # as for a script that lies there
torch.set_num_threads(1)  # as the ranks, so that both sum in the same order
