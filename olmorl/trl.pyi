from olmorl.deploy.trl_script import GRPOConfig as GRPOConfig
from olmorl.deploy.trl_script import GRPOTrainer as GRPOTrainer
