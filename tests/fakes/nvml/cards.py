"""What some GPUs say. The numbers are made up; only their kinds are the drivers'."""

from typing import Any

MIB = 1 << 20

RTX_4090: dict[str, Any] = {
    "UUID": "GPU-11111111-aaaa-bbbb-cccc-000000000001",
    "Name": "NVIDIA GeForce RTX 4090",
    "Architecture": 8,
    "PciInfo": "0000:01:00",
    "VirtualizationMode": 0,
    "TemperatureThreshold.1": 93,
    "PcieReplayCounter": 17,
    "MemoryBusWidth": 384,
    "MaxClockInfo.1": 3105,
    "MaxClockInfo.2": 10501,
    "ClockInfo.1": 2520,
    "ClockInfo.2": 10251,
    "UtilizationRates": "97 61",
    "Field186": 310_500,
    "PowerUsage": 300_000,
    "PerformanceState": 2,
    "CurrentClocksEventReasons": 0x4,
    "CurrentClocksThrottleReasons": 0x20,
    "TemperatureV.0": 64,
    "Temperature.0": 63,
    "MarginTemperature": 19,
    "MemoryInfo_v2": f"{24564 * MIB} {460 * MIB} {1000 * MIB} {23104 * MIB}",
    "MemoryInfo": f"{24564 * MIB} {1000 * MIB} {23564 * MIB}",
    "EnforcedPowerLimit": 400_000,
    "PowerManagementDefaultLimit": 450_000,
    "PowerManagementLimitConstraints": "150000 600000",
    "ComputeRunningProcesses": f"7:{100 * MIB} 8:-",
    "GraphicsRunningProcesses": f"7:{120 * MIB} 9:{5 * MIB}",
    "ProcessUtilization": "7:88:40:100 9:3:1:100",
    "CurrPcieLinkGeneration": 4,
    "CurrPcieLinkWidth": 8,
    "MaxPcieLinkGeneration": 4,
    "MaxPcieLinkWidth": 16,
    "GpuMaxPcieLinkGeneration": 4,
    "TotalEnergyConsumption": 5_000_250,
    "Field74": 7_000_000_000,
    "Field197": 1_000_000,
    "Field198": 2_000_000,
    "Field269": 3_000_000,
    "Field270": 2_000_000,
    "Field271": 1_000_000,
}
"""A desktop card, without events: a test in which one is lost need not wait for their thread."""

H100: dict[str, Any] = RTX_4090 | {
    "UUID": "GPU-22222222-aaaa-bbbb-cccc-000000000002",
    "Name": "NVIDIA H100 80GB HBM3",
    "Architecture": 9,
    "PciInfo": "0000:65:00",
    "Field82": 71,
    "PowerSource": 0,
    "TotalEccErrors.1.1": 3,
    "RemappedRows": "2 1 0 0",
    "GpmQueryDeviceSupport": 1,
    "GpmDramBusy": 43.5,
    "Xids": "none",
    "MigMode": "0 0",
}
"""A card of a data center, which says all that is asked."""

MIG = {
    "MigMode": "1 1",
    "MaxMigDeviceCount": 7,
    "UtilizationRates": None,
    "ProcessUtilization": None,
    "RemappedRows": None,
    "MemoryInfo": "!4",
    "MemoryInfo_v2": "!4",
    "mig0.UUID": "MIG-1",
    "mig0.Name": "NVIDIA H100 80GB HBM3 MIG 3g.40gb",
    "mig0.GpuInstanceId": 2,
    "mig0.MemoryInfo_v2": f"{40 * 1024 * MIB} {64 * MIB} {30 * 1024 * MIB} {10 * 1024 * MIB}",
    "mig0.ComputeRunningProcesses": f"7:{9 * 1024 * MIB}",
    "mig2.UUID": "MIG-2",
    "mig2.Name": "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
    "mig2.GpuInstanceId": 5,
    "mig2.MemoryInfo_v2": f"{10 * 1024 * MIB} {16 * MIB} {9 * 1024 * MIB} {1024 * MIB}",
    "mig2.ComputeRunningProcesses": "none",
    "GpmDramBusy.2": 20,
    "GpmDramBusy.5": 5,
}
"""To be put over the H100: cut into two slices, in the first and third of its places."""
