"""Any torch.nn.Module becomes a Workload: one real training step is traced on the meta device.

Nothing is computed, so a model that fits no machine traces in seconds; `backend` alone imports torch.
"""

from forerun.workloads.trace.module import trace_module, workload_from_reference

__all__ = ["trace_module", "workload_from_reference"]
