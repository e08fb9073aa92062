"""The machines that hosts offer: a plausible, seeded catalogue.

Prices, sizes and shares follow what is usually on offer; no row is a real machine. A machine is divided into equal
lots, each rented as a whole, because that is how fractional machines reach the search: several offers, one machine.
"""

from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from random import Random


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU type, with the usual market price of one in dollars per hour and what one proves on a roomy host."""

    name: str
    ram_mb: int
    compute_cap: int
    tflops: float
    mem_bw_gb_per_s: float
    max_power_w: int
    dlperf: float
    usd_per_hour: Decimal
    proofs_per_hour: float
    share: int


GPUS = (
    Gpu("RTX 3090", 24576, 860, 35.6, 936.0, 350, 55.0, Decimal("0.17"), 30.0, 16),
    Gpu("RTX 4080S", 16376, 890, 52.2, 736.0, 320, 74.0, Decimal("0.22"), 40.0, 10),
    Gpu("RTX 4090", 24564, 890, 82.6, 1008.0, 450, 101.0, Decimal("0.36"), 58.0, 26),
    Gpu("RTX 5090", 32607, 1200, 104.8, 1792.0, 575, 190.0, Decimal("0.52"), 92.0, 18),
    Gpu("RTX A6000", 49140, 860, 38.7, 768.0, 300, 56.0, Decimal("0.42"), 36.0, 8),
    Gpu("L40S", 46068, 890, 91.6, 864.0, 350, 98.0, Decimal("0.68"), 66.0, 8),
    Gpu("A100 SXM4", 81920, 800, 19.5, 2039.0, 400, 92.0, Decimal("0.95"), 62.0, 6),
    Gpu("H100 SXM", 81559, 900, 66.9, 3350.0, 700, 220.0, Decimal("2.10"), 118.0, 8),
)

PLACES = (
    "California, US",
    "Texas, US",
    "Quebec, CA",
    "Norway, NO",
    "Sweden, SE",
    "Germany, DE",
    "Czechia, CZ",
    "Bulgaria, BG",
    "Taiwan, TW",
    "Japan, JP",
    "Vietnam, VN",
)

CPUS = ("AMD EPYC 7543 32-Core", "AMD EPYC 9354 32-Core", "Xeon Gold 6338", "AMD Ryzen 9 7950X", "Xeon E5-2698 v4")


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine of one host: its whole size, and the terms on which a lot of it is rented."""

    machine_id: int
    host_id: int
    gpu: Gpu
    num_gpus: int
    lots: int
    usd_per_gpu_hour: Decimal
    usd_per_gb_month: Decimal
    usd_per_gb_down: Decimal
    usd_per_gb_up: Decimal
    cpu_name: str
    cpu_cores: int
    cpu_ram_mb: int
    disk_gb: int
    disk_mb_per_s: float
    down_mbit_per_s: float
    up_mbit_per_s: float
    driver_version: str
    cuda_max_good: float
    reliability: float
    verification: str
    datacenter: bool
    static_ip: bool
    geolocation: str
    public_ip: str
    offered_for: timedelta
    host_speed: float
    """How fast its boxes prove against what their GPUs promise (1.0): cooling, disks, neighbours."""

    @property
    def gpus_per_lot(self) -> int:
        return self.num_gpus // self.lots

    @property
    def share(self) -> float:
        """The part of the machine that one lot gets."""
        return 1 / self.lots


def seeded(*parts: object) -> Random:
    """The dice of one thing in the world, the same in every run: no draw depends on the order of other draws."""
    return Random("/".join(map(str, parts)))  # noqa: S311 - to be repeatable is the purpose


def catalogue(seed: int, machines: int) -> list[Machine]:
    """The same machines for the same seed. Machine and host ids start far from those of offers and instances."""
    random = seeded(seed, "catalogue")
    hosts = [60_000 + n for n in range(max(1, machines // 2))]
    return [_machine(random, machine_id=20_000 + n, host_id=random.choice(hosts), n=n) for n in range(machines)]


def _machine(random: Random, *, machine_id: int, host_id: int, n: int) -> Machine:
    gpu = random.choices(GPUS, weights=[gpu.share for gpu in GPUS])[0]
    num_gpus = random.choices((1, 2, 4, 8), weights=(45, 20, 20, 15))[0]
    verification = random.choices(("verified", "unverified", "deverified"), weights=(76, 21, 3))[0]
    datacenter = verification == "verified" and random.random() < 0.4
    price = gpu.usd_per_hour * Decimal(str(round(random.uniform(0.82, 1.35) * (1.08 if datacenter else 1), 3)))
    driver_version, cuda_max_good = random.choice((("535.183.01", 12.2), ("570.133.20", 12.8), ("580.95.05", 13.0)))
    return Machine(
        machine_id=machine_id,
        host_id=host_id,
        gpu=gpu,
        num_gpus=num_gpus,
        lots=random.choice({1: (1,), 2: (1, 1, 2), 4: (1, 1, 2), 8: (1, 2, 4)}[num_gpus]),
        usd_per_gpu_hour=price.quantize(Decimal("0.0001")),
        usd_per_gb_month=random.choice((Decimal("0.10"), Decimal("0.15"), Decimal("0.20"))),
        usd_per_gb_down=random.choice((Decimal(0), Decimal("0.002"), Decimal("0.005"))),
        usd_per_gb_up=random.choice((Decimal(0), Decimal("0.004"), Decimal("0.010"))),
        cpu_name=random.choice(CPUS),
        cpu_cores=random.choice((32, 48, 64, 96, 128)) * (2 if num_gpus == 8 else 1),
        cpu_ram_mb=1024 * random.choice((64, 128, 256, 384) if num_gpus == 1 else (256, 512, 768, 1024)),
        disk_gb=random.choice((600, 1200, 2400, 4800)),
        disk_mb_per_s=round(random.uniform(900, 6500), 1),
        down_mbit_per_s=round(random.uniform(180, 4500), 1),
        up_mbit_per_s=round(random.uniform(90, 2500), 1),
        driver_version=driver_version,
        cuda_max_good=cuda_max_good,
        reliability=round(random.uniform(*((0.975, 0.9995) if verification == "verified" else (0.86, 0.985))), 4),
        verification=verification,
        datacenter=datacenter,
        static_ip=datacenter or random.random() < 0.3,
        geolocation=random.choice(PLACES),
        public_ip=f"203.0.113.{n % 254 + 1}",
        offered_for=timedelta(days=random.randint(5, 90)),
        host_speed=round(random.uniform(0.85, 1.12), 3),
    )
