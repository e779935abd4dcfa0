"""AMD's GPUs, by the files of the amdgpu driver."""
