# rule: metric-not-shared
# source: Lightning-AI/pytorch-lightning#3597
import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))

    def training_step(self, batch, _):
        x, y = batch
        return nn.functional.cross_entropy(self.f(x), y)

    def validation_step(self, batch, _):
        x, y = batch
        loss = nn.functional.cross_entropy(self.f(x), y)
        self.log("val_loss", loss)  # <-- here

    def configure_optimizers(self):
        opt = torch.optim.Adam(self.parameters(), 1e-2)
        sched = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, patience=0, factor=0.3)
        return {"optimizer": opt, "lr_scheduler": {"scheduler": sched, "monitor": "val_loss"}}  # <-- here


def data(n, seed):
    g = torch.Generator().manual_seed(seed)
    return TensorDataset(torch.randn(n, 16, generator=g), torch.randint(4, (n,), generator=g))


if __name__ == "__main__":
    trainer = L.Trainer(
        accelerator="gpu",
        devices=2,
        strategy="ddp",
        max_epochs=4,
        logger=False,
        enable_progress_bar=False,
        callbacks=[ModelCheckpoint(dirpath="ckpt", monitor="val_loss", save_top_k=1)],
    )
    trainer.fit(Net(), DataLoader(data(128, 0), 8, shuffle=True), DataLoader(data(64, 1), 8))  # <-- here
