// How much slower or faster a rank is than its cost table says, from the times of its steps.
//
// One factor per rank is identifiable although the share stands still; a line through (share, time) is not.
// Thread safety: not synchronised.
#pragma once

#include <cstdint>
#include <deque>

namespace kaitian::schedule {

/// Every constant of estimation and control.
struct Constants {
  // Estimation of a rank's scale.
  int window = 40;           // log-ratios whose median is the scale; jumps do not wait for it, drift does
  double winsor = 4;         // a measurement counts as at most so many standard deviations
  double slack = 0.5;        // CUSUM: deviations below it are noise (standard deviations)
  double threshold = 10;     // CUSUM: sum at which the rank has changed
  int kept = 3;              // measurements that remain when it has
  double leastNoise = 0.03;  // standard deviation of the log-ratio is not believed to be below it
  int settling = 1;          // steps after a change of a rank's share that do not count for it
  int refining = 6;          // measurements at a new share that correct the cost table there
  double tableError = 0.3;   // corrections up to this part; what is larger is a change of the device
  // Control.
  double gain = 0.03;  // a schedule is adopted for at least this part of the step time ...
  double leastGain =
      0.005;  // ... for less, down to this, if the present one has held as much longer than `dwell`,
  double sureGain = 3;  // and for no less than so many standard errors of a rank's scale
  int dwell = 10;       // steps between the starts of schedules
  // Learning of cost tables.
  int learningSteps = 4;  // steps per size that is visited
  // Ranks that are left out.
  int probing = 100;         // at least so many steps between two measurements of such a rank
  double probeCost = 0.005;  // part of the time that these measurements may cost at most
  int remembered = 2000;     // steps after which the communication of a set of islands is not known any more
};

class ScaleEstimator {
 public:
  explicit ScaleEstimator(const Constants& constants = {}) : constants_(constants) {}

  /// One step: measured seconds over those that the table says. Returns whether the rank has changed for good
  /// just now, two-sided CUSUM over the winsorised, standardised log-ratio (Page, Continuous Inspection
  /// Schemes, 1954); older measurements are then forgotten. Values that are not finite and positive are
  /// ignored.
  bool add(double ratio);

  /// Now / then: the median of the recent ratios; 1 before the first.
  double scale() const;
  /// Standard deviation of the log-ratio, robustly (1.4826 x median absolute deviation).
  double noise() const;
  /// Standard error of the logarithm of scale(): that of a median, for normal noise. Infinite before the
  /// second measurement.
  double uncertainty() const;
  int count() const { return static_cast<int>(logs_.size()); }
  /// Forgets everything, after the table has changed; the next measurements start anew from this scale.
  void reset(double scale = 1);

 private:
  double spread() const;

  Constants constants_;
  std::deque<double> logs_;
  double start_ = 0;  // log of the scale without measurements
  double above_ = 0, below_ = 0;
};

}  // namespace kaitian::schedule
