from olmorl.deploy.api import Recipe as Recipe
from olmorl.deploy.api import run as run
from olmorl.deploy.api import verify as verify
from olmorl.deploy.run_tables import read_run as read_run

__version__: str
