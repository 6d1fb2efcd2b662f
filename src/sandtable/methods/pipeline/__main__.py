"""The profiler as a script: `python -m sandtable.methods.pipeline REQUEST OUT`.

REQUEST is a `ProfileRequest` as JSON, OUT the file to write.
"""

import sys

from sandtable.methods.pipeline import ProfileRequest, measure_profile
from sandtable.step_marker import step

if __name__ == "__main__":
    request, out = sys.argv[1:]
    measure_profile(ProfileRequest.from_json(request)).save(out)
    step()  # nothing is updated: in a rehearsal the whole profile is one step
