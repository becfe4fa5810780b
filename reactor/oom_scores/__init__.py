"""All that writes oom_score_adj of pods' processes, for the case that the kernel's OOM killer comes first.

    policy    which scores put the other pods behind the one that is evicted first; pure
    order     keeps that order while memory is near a threshold, and restores what was
    pods      the processes of a pod, and the scores of pods in manifests, as a kubelet sets them
    written   what processes had before, and how they get it again; the one writer
    restorer  the process that restores if the guard is dead or does not move

Nothing is imported here: the restorer takes as little memory as it can.
"""
