package images

// Drives the real image garbage collection over scenarios, one JSON object a line, for tests/upstream.
// Goes into pkg/kubelet/images of Kubernetes 1.20.2; see tests/upstream/README.md.

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io/ioutil"
	"math"
	"os"
	"testing"
	"time"

	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	configv1beta1 "k8s.io/kubernetes/pkg/kubelet/apis/config/v1beta1"
	"k8s.io/kubernetes/pkg/kubelet/container"
	containertest "k8s.io/kubernetes/pkg/kubelet/container/testing"
)

type diffImage struct {
	ID                      string
	SizeBytes               int64
	FirstDetected, LastUsed *string
	InUse                   bool
}

type diffLine struct {
	ID  string
	Doc struct {
		KubeletConfiguration json.RawMessage
		Images               []diffImage
		Steps                []struct {
			At         string
			Summary    *statsapi.Summary
			StatsError bool
		}
	}
	Reclaims []bool // of each step: eviction asked for the unused images
}

type diffResult struct {
	ID    string     `json:"id"`
	Error string     `json:"error,omitempty"`
	Steps [][]string `json:"steps"` // of each step: the images removed, in order
}

type diffRuntime struct {
	*containertest.FakeRuntime
	removed []string
}

func (r *diffRuntime) RemoveImage(image container.ImageSpec) error {
	r.removed = append(r.removed, image.Image)
	return r.FakeRuntime.RemoveImage(image)
}

type diffStats struct{ stats *statsapi.FsStats }

func (s *diffStats) ImageFsStats() (*statsapi.FsStats, error) {
	if s.stats == nil {
		return nil, fmt.Errorf("not observed")
	}
	return s.stats, nil
}

func span(text string) time.Duration {
	found, err := time.ParseDuration(text)
	if err != nil {
		panic(err)
	}
	return found
}

func runImages(line *diffLine) (result diffResult) {
	result.ID = line.ID
	defer func() {
		if problem := recover(); problem != nil {
			result.Error = fmt.Sprintf("panic: %v", problem)
		}
	}()
	configuration := kubeletv1beta1.KubeletConfiguration{}
	if len(line.Doc.KubeletConfiguration) > 0 {
		if err := json.Unmarshal(line.Doc.KubeletConfiguration, &configuration); err != nil {
			panic(err)
		}
	}
	configv1beta1.SetDefaults_KubeletConfiguration(&configuration)
	runtime := &diffRuntime{FakeRuntime: &containertest.FakeRuntime{}}
	stats := &diffStats{}
	manager, err := NewImageGCManager(runtime, stats, record.NewFakeRecorder(1000), nil, ImageGCPolicy{
		HighThresholdPercent: int(*configuration.ImageGCHighThresholdPercent),
		LowThresholdPercent:  int(*configuration.ImageGCLowThresholdPercent),
		MinAge:               configuration.ImageMinimumGCAge.Duration,
	}, "")
	if err != nil {
		return diffResult{ID: line.ID, Error: err.Error()}
	}
	real := manager.(*realImageGCManager)
	left := line.Doc.Images
	for i, step := range line.Doc.Steps {
		if step.Summary != nil {
			stats.stats = nil
			if step.Summary.Node.Runtime != nil {
				stats.stats = step.Summary.Node.Runtime.ImageFs
			}
		}
		runtime.removed = []string{}
		if !step.StatsError {
			setUp := func(now time.Time) {
				real.imageRecords = map[string]*imageRecord{}
				runtime.ImageList = nil
				used := &container.Pod{Name: "user"}
				for _, image := range left {
					entry := &imageRecord{size: image.SizeBytes}
					if image.FirstDetected != nil {
						entry.firstDetected = now.Add(span(*image.FirstDetected) - span(step.At))
					}
					if image.LastUsed != nil {
						since := span(*image.LastUsed) - span(step.At)
						if since == 0 {
							// GarbageCollect takes its time from the wall, some microseconds from now: an image that is used
							// at this very moment is one that was used no earlier than that.
							since = time.Hour
						}
						entry.lastUsed = now.Add(since)
					}
					real.imageRecords[image.ID] = entry
					runtime.ImageList = append(runtime.ImageList, container.Image{ID: image.ID, Size: image.SizeBytes})
					if image.InUse {
						used.Containers = append(used.Containers, &container.Container{ImageID: image.ID})
					}
				}
				runtime.AllPodList = []*containertest.FakePod{{Pod: used}}
			}
			drop := func() {
				still := []diffImage{}
				for _, image := range left {
					gone := false
					for _, id := range runtime.removed {
						gone = gone || id == image.ID
					}
					if !gone {
						still = append(still, image)
					}
				}
				left = still
			}
			setUp(time.Now())
			_ = real.GarbageCollect() // an error is that too little was freed, or that nothing was observed
			drop()
			if i < len(line.Reclaims) && line.Reclaims[i] {
				now := time.Now()
				setUp(now)
				if _, err := real.freeSpace(math.MaxInt64, now); err != nil { // as DeleteUnusedImages does
					panic(err)
				}
				drop()
			}
		}
		result.Steps = append(result.Steps, runtime.removed)
	}
	return result
}

func TestDifferential(t *testing.T) {
	if os.Getenv("DIFF_IN") == "" {
		t.Skip("DIFF_IN and DIFF_OUT name the files of the comparison")
	}
	klog.LogToStderr(false)
	klog.SetOutput(ioutil.Discard)
	in, err := os.Open(os.Getenv("DIFF_IN"))
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := os.Create(os.Getenv("DIFF_OUT"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	writer := bufio.NewWriter(out)
	defer writer.Flush()
	encoder := json.NewEncoder(writer)
	decoder := json.NewDecoder(bufio.NewReaderSize(in, 1<<20))
	for decoder.More() {
		line := diffLine{}
		if err := decoder.Decode(&line); err != nil {
			t.Fatal(err)
		}
		_ = encoder.Encode(runImages(&line))
	}
}
