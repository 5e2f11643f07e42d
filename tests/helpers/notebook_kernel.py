"""A notebook's kernel, started as a script of this folder, so that tests/preloaded runs it with torch loaded."""

import matplotlib as mpl
from ipykernel.kernelapp import launch_new_instance

if __name__ == "__main__":
    # As the kernel sets by a variable of the environment, which pyplot reads only when it is imported.
    mpl.rcParams["backend"] = "module://matplotlib_inline.backend_inline"
    launch_new_instance()
