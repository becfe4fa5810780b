package eviction

// Drives the real eviction manager over scenarios, one JSON object a line, for tests/upstream.
// Goes into pkg/kubelet/eviction of Kubernetes 1.20.2; see tests/upstream/README.md.

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io/ioutil"
	"os"
	"sort"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/clock"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	v1resource "k8s.io/kubernetes/pkg/api/v1/resource"
	corev1 "k8s.io/kubernetes/pkg/apis/core/v1"
	v1qos "k8s.io/kubernetes/pkg/apis/core/v1/helper/qos"
	"k8s.io/kubernetes/pkg/features"
	configv1beta1 "k8s.io/kubernetes/pkg/kubelet/apis/config/v1beta1"
	evictionapi "k8s.io/kubernetes/pkg/kubelet/eviction/api"
	"k8s.io/kubernetes/pkg/kubelet/lifecycle"
	"k8s.io/kubernetes/pkg/kubelet/qos"
	kubelettypes "k8s.io/kubernetes/pkg/kubelet/types"
)

// A line of the input. Op is "scenario", "pod", "thresholds", "quantity" or "duration".
type diffLine struct {
	Op string
	ID string

	// scenario: the project's own document. Repeat is how often a step with several thresholds due is run, since
	// upstream's choice among them is that of a Go map. Taught is in which points upstream is to decide otherwise
	// than its code of 1.20 does, by the names below.
	Doc    *diffScenario
	Taught []string
	Repeat int

	// pod: what is known of one by itself, on a node of this capacity
	Pod           *v1.Pod
	CapacityBytes int64

	// thresholds: what ParseThresholdConfig takes
	Enforce                   []string
	Hard, Soft, Grace, Minima map[string]string

	Text string // quantity, duration
}

// What upstream can be taught. tests/upstream/differential/known.py says why each.
const (
	// In the look after a reclaim the minimum reclaim is added.
	minimumAfterReclaim = "minimum-after-reclaim"
	// With a dedicated image filesystem nodefs reclaims containers.
	nodefsContainers = "nodefs-containers"
	// A threshold at or above the capacity does not exist.
	belowCapacity = "below-capacity"
	// Inodes are ordered without the request of ephemeral storage.
	inodesWithoutRequest = "inodes-without-request"
	// Requests of ephemeral storage count for the ranking, localStorageCapacityIsolation or not.
	requestsDespiteIsolation = "requests-despite-isolation"
	// A soft eviction's grace period is the smaller of the two; a negative maximum leaves it to the pod.
	smallerGrace = "smaller-grace"
	// A threshold for allocatableMemory.available of the user's own is compared; upstream gives it no operator.
	ownAllocatable = "own-allocatable"
	// Inodes of the image filesystem are observed whether or not its bytes are.
	imagefsInodes = "imagefs-inodes"
)

type diffScenario struct {
	KubeletConfiguration json.RawMessage
	Filesystems          struct{ DedicatedImageFs bool }
	Pods                 []*v1.Pod
	Steps                []diffStep
}

type diffStep struct {
	At           string
	Pods         *[]*v1.Pod
	Summary      *statsapi.Summary
	StatsError   bool
	AfterReclaim map[string]*statsapi.Summary
	ReclaimError []string
	Admit        []*v1.Pod
}

type diffEviction struct {
	Pod         string            `json:"pod"`
	UID         string            `json:"uid"`
	Grace       int64             `json:"grace"`
	Message     string            `json:"message"`
	Reason      string            `json:"reason"`
	Annotations map[string]string `json:"annotations"`
}

// What one run of a step came to. Ranking is in groups: pods in one group compare as equal.
type diffOutcome struct {
	Signal    string         `json:"signal"`
	Reclaimed []string       `json:"reclaimed"`
	Evicted   []diffEviction `json:"evicted"`
	Ranking   [][]string     `json:"ranking"`
}

type diffThreshold struct {
	Signal    string  `json:"signal"`
	Grace     float64 `json:"grace"`
	Quantity  string  `json:"quantity,omitempty"`
	Percent   float64 `json:"percent,omitempty"`
	MinAmount string  `json:"minAmount,omitempty"`
	MinShare  float64 `json:"minShare,omitempty"`
	// of this step's observation, as evictions' messages of newer versions print it
	Wanted    string `json:"wanted,omitempty"`
	Available string `json:"available,omitempty"`
}

type diffPod struct {
	QOS            string `json:"qos"`
	Critical       bool   `json:"critical"`
	Memory         int64  `json:"memory"` // requested, rounded up to a byte
	Storage        int64  `json:"storage"`
	StorageLimit   *int64 `json:"storageLimit"`
	OOMScoreAdjust []int  `json:"oomScoreAdjust"` // of each container, in order
	Grace          int64  `json:"grace"`
	Priority       int64  `json:"priority"`
}

type diffAdmission struct {
	Admitted bool   `json:"admitted"`
	Reason   string `json:"reason"`
	Message  string `json:"message"`
}

type diffStepResult struct {
	Conditions []string                 `json:"conditions"`
	Met        []diffThreshold          `json:"met"`
	Outcomes   []diffOutcome            `json:"outcomes"`
	Runs       int                      `json:"runs"`
	Admit      map[string]diffAdmission `json:"admit"`
	Memcg      map[string]int64         `json:"memcg"`
}

type diffResult struct {
	ID         string           `json:"id"`
	Error      string           `json:"error,omitempty"`
	Steps      []diffStepResult `json:"steps,omitempty"`
	Thresholds []diffThreshold  `json:"thresholds,omitempty"`
	Text       string           `json:"text,omitempty"`
	Value      int64            `json:"value,omitempty"`
	Nanos      int64            `json:"nanos,omitempty"`
	Pod        *diffPod         `json:"pod,omitempty"`
}

// diffRun is one call of synchronize: everything that the manager talks to.
type diffRun struct {
	manager *managerImpl
	taught  map[string]bool
	step    *diffStep
	summary *statsapi.Summary
	looks   int
	notes   map[string]string
	out     diffOutcome
}

func (r *diffRun) Get(bool) (*statsapi.Summary, error) {
	r.looks++
	if r.step.StatsError {
		return nil, fmt.Errorf("no statistics in this step")
	}
	if r.looks == 2 && (r.taught[minimumAfterReclaim] || r.taught[belowCapacity]) {
		// Both branches by upstream's own functions.
		observations, _ := makeSignalObservations(r.shown(r.summary))
		thresholds := r.existing(observations, r.manager.config.Thresholds)
		if len(thresholdsMet(thresholds, observations, r.taught[minimumAfterReclaim])) == 0 {
			return &statsapi.Summary{}, nil
		}
		return nil, fmt.Errorf("still met with its minimum reclaim")
	}
	return r.shown(r.summary), nil
}

// shown returns a summary with plenty of bytes beside inodes that have none, where upstream is taught to see those.
func (r *diffRun) shown(summary *statsapi.Summary) *statsapi.Summary {
	if !r.taught[imagefsInodes] || !lacksImageBytes(summary) {
		return summary
	}
	filled, plenty := *summary, uint64(1)<<50
	filesystem := *summary.Node.Runtime.ImageFs
	filesystem.AvailableBytes, filesystem.CapacityBytes = &plenty, &plenty
	filled.Node.Runtime = &statsapi.RuntimeStats{ImageFs: &filesystem}
	return &filled
}

func lacksImageBytes(summary *statsapi.Summary) bool {
	if summary.Node.Runtime == nil || summary.Node.Runtime.ImageFs == nil {
		return false
	}
	filesystem := summary.Node.Runtime.ImageFs
	return filesystem.InodesFree != nil && (filesystem.AvailableBytes == nil || filesystem.CapacityBytes == nil)
}

// existing returns the thresholds that are below the capacity, where upstream is taught that others don't exist.
func (r *diffRun) existing(observations signalObservations, thresholds []evictionapi.Threshold) []evictionapi.Threshold {
	if !r.taught[belowCapacity] {
		return thresholds
	}
	found := []evictionapi.Threshold{}
	for _, threshold := range thresholds {
		observed, seen := observations[threshold.Signal]
		if !seen || evictionapi.GetThresholdQuantity(threshold.Value, observed.capacity).Cmp(*observed.capacity) < 0 {
			found = append(found, threshold)
		}
	}
	return found
}

func (r *diffRun) GetCPUAndMemoryStats() (*statsapi.Summary, error) { return r.Get(true) }

func (r *diffRun) reclaim(kind string) error {
	r.out.Reclaimed = append(r.out.Reclaimed, kind)
	for _, failing := range r.step.ReclaimError {
		if failing == kind {
			return fmt.Errorf("%s failed", kind)
		}
	}
	if after := r.step.AfterReclaim[kind]; after != nil {
		r.summary = after
	}
	return nil
}

func (r *diffRun) DeleteUnusedImages() error        { return r.reclaim("images") }
func (r *diffRun) DeleteAllUnusedContainers() error { return r.reclaim("containers") }

func (r *diffRun) HasDedicatedImageFs() (bool, error) { return *r.manager.dedicatedImageFs, nil }

func (r *diffRun) kill(pod *v1.Pod, status v1.PodStatus, override *int64) error {
	grace, own := *override, *pod.Spec.TerminationGracePeriodSeconds
	if r.taught[smallerGrace] && (grace < 0 || grace > own) {
		grace = own
	}
	r.out.Evicted = append(r.out.Evicted, diffEviction{
		Pod: pod.Namespace + "/" + pod.Name, UID: string(pod.UID), Grace: grace,
		Message: status.Message, Reason: status.Reason, Annotations: r.notes,
	})
	return nil
}

func (r *diffRun) Event(runtime.Object, string, string, string)                  {}
func (r *diffRun) Eventf(runtime.Object, string, string, string, ...interface{}) {}
func (r *diffRun) AnnotatedEventf(_ runtime.Object, notes map[string]string, _, _, _ string, _ ...interface{}) {
	r.notes = notes
}

// diffMemcg keeps the levels at which the kernel would have been asked to wake the kubelet.
type diffMemcg struct {
	sync.Mutex
	name   string
	levels map[string]int64
}

func (d *diffMemcg) NewCgroupNotifier(_, _ string, threshold int64) (CgroupNotifier, error) {
	d.levels[d.name] = threshold
	return d, nil
}
func (d *diffMemcg) Start(chan<- struct{}) {}
func (d *diffMemcg) Stop()                 {}

func diffDescribe(t evictionapi.Threshold) diffThreshold {
	out := diffThreshold{Signal: string(t.Signal), Grace: t.GracePeriod.Seconds(), Percent: float64(t.Value.Percentage)}
	if t.Value.Quantity != nil {
		out.Quantity = t.Value.Quantity.String()
	}
	if t.MinReclaim != nil {
		out.MinShare = float64(t.MinReclaim.Percentage)
		if t.MinReclaim.Quantity != nil {
			out.MinAmount = t.MinReclaim.Quantity.String()
		}
	}
	return out
}

// copyOf returns a manager in the same state, without the lock.
func copyOf(m *managerImpl) *managerImpl {
	return &managerImpl{
		clock: m.clock, config: m.config, nodeConditions: m.nodeConditions,
		nodeConditionsLastObservedAt: m.nodeConditionsLastObservedAt, nodeRef: m.nodeRef,
		thresholdsFirstObservedAt: m.thresholdsFirstObservedAt, thresholdsMet: m.thresholdsMet,
		lastObservations: m.lastObservations, dedicatedImageFs: m.dedicatedImageFs,
		thresholdNotifiers: m.thresholdNotifiers, thresholdsLastUpdated: m.thresholdsLastUpdated,
		etcHostsPath: m.etcHostsPath,
	}
}

// synchronizeOnce runs one pass from the state of m and returns the manager after it, and what it did.
func synchronizeOnce(line *diffLine, m *managerImpl, step *diffStep, summary *statsapi.Summary, pods []*v1.Pod) (*managerImpl, diffOutcome) {
	next := copyOf(m)
	taught := map[string]bool{}
	for _, name := range line.Taught {
		taught[name] = true
	}
	run := &diffRun{manager: next, taught: taught, step: step, summary: summary,
		out: diffOutcome{Reclaimed: []string{}, Evicted: []diffEviction{}, Ranking: [][]string{}}}
	next.killPodFunc, next.recorder, next.summaryProvider = run.kill, run, run
	next.imageGC, next.containerGC = run, run
	if observations, _ := makeSignalObservations(run.shown(summary)); taught[belowCapacity] && !step.StatsError {
		all := next.config.Thresholds
		next.config.Thresholds = run.existing(observations, all)
		next.thresholdsMet = run.existing(observations, next.thresholdsMet)
		next.thresholdNotifiers = []ThresholdNotifier{}
		for _, notifier := range m.thresholdNotifiers {
			of := []evictionapi.Threshold{notifier.(*memoryThresholdNotifier).threshold}
			if len(run.existing(observations, of)) == 1 {
				next.thresholdNotifiers = append(next.thresholdNotifiers, notifier)
			}
		}
		defer func() { next.config.Thresholds, next.thresholdNotifiers = all, m.thresholdNotifiers }()
	}
	next.signalToRankFunc = map[evictionapi.Signal]rankFunc{}
	for signal, rank := range buildSignalToRankFunc(*m.dedicatedImageFs) {
		signal, rank := signal, taughtRank(taught, signal, rank)
		next.signalToRankFunc[signal] = func(pods []*v1.Pod, stats statsFunc) {
			run.out.Signal = string(signal)
			rank(pods, stats)
			for i, pod := range pods {
				name := pod.Namespace + "/" + pod.Name
				if i > 0 {
					turned := []*v1.Pod{pod, pods[i-1]}
					rank(turned, stats)
					if turned[0] == pod { // the other way round would have been as good
						last := len(run.out.Ranking) - 1
						run.out.Ranking[last] = append(run.out.Ranking[last], name)
						continue
					}
				}
				run.out.Ranking = append(run.out.Ranking, []string{name})
			}
		}
	}
	next.signalToNodeReclaimFuncs = map[evictionapi.Signal]nodeReclaimFuncs{}
	for signal, functions := range buildSignalToNodeReclaimFuncs(run, run, *m.dedicatedImageFs) {
		signal := signal
		wrapped := nodeReclaimFuncs{}
		if taught[nodefsContainers] && len(functions) == 0 {
			functions = nodeReclaimFuncs{run.DeleteAllUnusedContainers}
		}
		for _, function := range functions {
			function := function
			wrapped = append(wrapped, func() error {
				run.out.Signal = string(signal)
				return function()
			})
		}
		next.signalToNodeReclaimFuncs[signal] = wrapped
	}
	next.synchronize(run, func() []*v1.Pod { return append([]*v1.Pod{}, pods...) })
	if taught[imagefsInodes] && lacksImageBytes(summary) && !step.StatsError {
		delete(next.lastObservations, evictionapi.SignalImageFsAvailable) // shown, and not observed
	}
	for i := range run.out.Ranking {
		sort.Strings(run.out.Ranking[i])
	}
	return next, run.out
}

// taughtRank returns upstream's ranking function, or that with what upstream is taught.
func taughtRank(taught map[string]bool, signal evictionapi.Signal, rank rankFunc) rankFunc {
	if taught[requestsDespiteIsolation] {
		rank = rankDespiteIsolation(rank)
	}
	ofInodes := signal == evictionapi.SignalNodeFsInodesFree || signal == evictionapi.SignalImageFsInodesFree
	if taught[inodesWithoutRequest] && ofInodes {
		rank = rankWithoutStorageRequests(rank)
	}
	return rank
}

func setIsolation(isolation bool) {
	if err := utilfeature.DefaultMutableFeatureGate.Set(fmt.Sprintf("LocalStorageCapacityIsolation=%v", isolation)); err != nil {
		panic(err)
	}
}

func rankDespiteIsolation(rank rankFunc) rankFunc {
	return func(pods []*v1.Pod, stats statsFunc) {
		before := utilfeature.DefaultFeatureGate.Enabled(features.LocalStorageCapacityIsolation)
		setIsolation(true)
		defer setIsolation(before)
		rank(pods, stats)
	}
}

// rankWithoutStorageRequests ranks copies that request no ephemeral storage, and puts the pods into their order.
func rankWithoutStorageRequests(rank rankFunc) rankFunc {
	return func(pods []*v1.Pod, stats statsFunc) {
		copies, of := []*v1.Pod{}, map[*v1.Pod]*v1.Pod{}
		for _, pod := range pods {
			made := pod.DeepCopy()
			for _, containers := range [][]v1.Container{made.Spec.Containers, made.Spec.InitContainers} {
				for i := range containers {
					delete(containers[i].Resources.Requests, v1.ResourceEphemeralStorage)
				}
			}
			delete(made.Spec.Overhead, v1.ResourceEphemeralStorage)
			copies, of[made] = append(copies, made), pod
		}
		rank(copies, stats)
		for i, made := range copies {
			pods[i] = of[made]
		}
	}
}

func runScenario(line *diffLine) (result diffResult) {
	result.ID = line.ID
	defer func() {
		if problem := recover(); problem != nil {
			result.Error = fmt.Sprintf("panic: %v", problem)
		}
	}()
	document := line.Doc
	configuration := kubeletv1beta1.KubeletConfiguration{}
	extra := struct{ LocalStorageCapacityIsolation *bool }{}
	if len(document.KubeletConfiguration) > 0 {
		for _, into := range []interface{}{&configuration, &extra} {
			if err := json.Unmarshal(document.KubeletConfiguration, into); err != nil {
				return diffResult{ID: line.ID, Error: err.Error()}
			}
		}
	}
	configv1beta1.SetDefaults_KubeletConfiguration(&configuration)
	isolation := extra.LocalStorageCapacityIsolation == nil || *extra.LocalStorageCapacityIsolation
	setIsolation(isolation)
	thresholds, err := ParseThresholdConfig(configuration.EnforceNodeAllocatable, configuration.EvictionHard,
		configuration.EvictionSoft, configuration.EvictionSoftGracePeriod, configuration.EvictionMinimumReclaim)
	if err != nil {
		return diffResult{ID: line.ID, Error: err.Error()}
	}
	for _, name := range line.Taught {
		for i := range thresholds {
			if name == ownAllocatable && thresholds[i].Operator == "" {
				thresholds[i].Operator = evictionapi.OpLessThan
			}
		}
	}
	start := time.Unix(1700000000, 0)
	now := clock.NewFakeClock(start)
	dedicated := document.Filesystems.DedicatedImageFs
	manager := &managerImpl{
		clock: now,
		config: Config{
			PressureTransitionPeriod: configuration.EvictionPressureTransitionPeriod.Duration,
			MaxPodGracePeriodSeconds: int64(configuration.EvictionMaxPodGracePeriod),
			Thresholds:               thresholds,
			KernelMemcgNotification:  configuration.KernelMemcgNotification,
		},
		nodeRef:                      &v1.ObjectReference{Kind: "Node", Name: "node"},
		nodeConditionsLastObservedAt: nodeConditionsObservedAt{},
		thresholdsFirstObservedAt:    thresholdsObservedAt{},
		dedicatedImageFs:             &dedicated,
		etcHostsPath:                 func(types.UID) string { return "" },
	}
	levels := map[string]int64{}
	if configuration.KernelMemcgNotification {
		for _, threshold := range thresholds {
			if threshold.Signal == evictionapi.SignalMemoryAvailable || threshold.Signal == evictionapi.SignalAllocatableMemoryAvailable {
				manager.thresholdNotifiers = append(manager.thresholdNotifiers, &memoryThresholdNotifier{
					threshold: threshold, events: make(chan struct{}),
					factory: &diffMemcg{name: fmt.Sprintf("%s@%g", threshold.Signal, threshold.GracePeriod.Seconds()), levels: levels},
				})
			}
		}
	}
	pods, summary := document.Pods, &statsapi.Summary{}
	for _, pod := range pods {
		corev1.SetObjectDefaults_Pod(pod)
	}
	for i := range document.Steps {
		step := &document.Steps[i]
		at, err := time.ParseDuration(step.At)
		if err != nil {
			panic(err)
		}
		now.SetTime(start.Add(at))
		if step.Pods != nil {
			pods = *step.Pods
			for _, pod := range pods {
				corev1.SetObjectDefaults_Pod(pod)
			}
		}
		if step.Summary != nil {
			summary = step.Summary
		}
		made := diffStepResult{Conditions: []string{}, Met: []diffThreshold{}, Admit: map[string]diffAdmission{}, Memcg: map[string]int64{}}
		seen := map[string]bool{}
		var next *managerImpl
		for runs := 1; made.Runs < runs; made.Runs++ {
			var outcome diffOutcome
			next, outcome = synchronizeOnce(line, manager, step, summary, pods)
			if len(next.thresholdsMet) > 1 && !step.StatsError {
				runs = line.Repeat
			}
			if text, _ := json.Marshal(outcome); !seen[string(text)] {
				seen[string(text)] = true
				made.Outcomes = append(made.Outcomes, outcome)
			}
		}
		manager = next
		for _, condition := range []v1.NodeConditionType{v1.NodeMemoryPressure, v1.NodeDiskPressure, v1.NodePIDPressure} {
			if hasNodeCondition(manager.nodeConditions, condition) {
				made.Conditions = append(made.Conditions, string(condition))
			}
		}
		if !step.StatsError {
			for _, threshold := range manager.thresholdsMet {
				met := diffDescribe(threshold)
				if observed, found := manager.lastObservations[threshold.Signal]; found {
					met.Wanted = evictionapi.GetThresholdQuantity(threshold.Value, observed.capacity).String()
					met.Available = observed.available.String()
				}
				made.Met = append(made.Met, met)
			}
		}
		for _, pod := range step.Admit {
			corev1.SetObjectDefaults_Pod(pod)
			answer := manager.Admit(&lifecycle.PodAdmitAttributes{Pod: pod})
			made.Admit[pod.Namespace+"/"+pod.Name] = diffAdmission{answer.Admit, answer.Reason, answer.Message}
		}
		for name, level := range levels {
			made.Memcg[name] = level
		}
		result.Steps = append(result.Steps, made)
	}
	return result
}

// describePod returns what upstream makes of a pod by itself.
func describePod(pod *v1.Pod, capacityBytes int64) *diffPod {
	corev1.SetObjectDefaults_Pod(pod)
	setIsolation(true)
	memory := v1resource.GetResourceRequestQuantity(pod, v1.ResourceMemory)
	storage := v1resource.GetResourceRequestQuantity(pod, v1.ResourceEphemeralStorage)
	made := &diffPod{
		QOS: string(v1qos.GetPodQOS(pod)), Critical: kubelettypes.IsCriticalPod(pod),
		Memory: memory.Value(), Storage: storage.Value(),
		Grace: *pod.Spec.TerminationGracePeriodSeconds, Priority: int64(corev1helpers.PodPriority(pod)),
		OOMScoreAdjust: []int{},
	}
	if _, limits := v1resource.PodRequestsAndLimits(pod); len(limits) > 0 {
		if limit, found := limits[v1.ResourceEphemeralStorage]; found {
			value := limit.Value()
			made.StorageLimit = &value
		}
	}
	for i := range pod.Spec.Containers {
		score := qos.GetContainerOOMScoreAdjust(pod, &pod.Spec.Containers[i], capacityBytes)
		made.OOMScoreAdjust = append(made.OOMScoreAdjust, score)
	}
	return made
}

func runPure(line *diffLine) diffResult {
	result := diffResult{ID: line.ID}
	switch line.Op {
	case "pod":
		result.Pod = describePod(line.Pod, line.CapacityBytes)
	case "thresholds":
		thresholds, err := ParseThresholdConfig(line.Enforce, line.Hard, line.Soft, line.Grace, line.Minima)
		if err != nil {
			result.Error = err.Error()
		}
		for _, threshold := range thresholds {
			result.Thresholds = append(result.Thresholds, diffDescribe(threshold))
		}
	case "quantity":
		quantity, err := resource.ParseQuantity(line.Text)
		if err != nil {
			result.Error = err.Error()
		} else {
			result.Text, result.Value = quantity.String(), quantity.Value()
		}
	case "duration":
		span, err := time.ParseDuration(line.Text)
		if err != nil {
			result.Error = err.Error()
		}
		result.Nanos = span.Nanoseconds()
	default:
		result.Error = "unknown op " + line.Op
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
		var raw json.RawMessage
		if err := decoder.Decode(&raw); err != nil {
			t.Fatal(err)
		}
		line := diffLine{Repeat: 1}
		if err := json.Unmarshal(raw, &line); err != nil {
			_ = encoder.Encode(diffResult{ID: line.ID, Error: "unreadable: " + err.Error()})
			continue
		}
		if line.Op == "scenario" {
			_ = encoder.Encode(runScenario(&line))
		} else {
			_ = encoder.Encode(runPure(&line))
		}
	}
}
